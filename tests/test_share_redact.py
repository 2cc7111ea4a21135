"""`share/privacy/redact.py`: what is private never survives, and what is not stays as it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from repromatrix.evidence.model import Signature
from repromatrix.project import Project
from repromatrix.share.privacy.private import Private, of_this_machine
from repromatrix.share.privacy.redact import Redactor, redact
from repromatrix.spec.model import Outcome
from tests.conftest import ROOT
from tests.sample_cells import ATTEMPT, REPRO, matrix

PRIVATE = Private(
    places=(("/data/groups/lab/mx", "<project>"), ("/home/a.smith/.cache/mx", "<store>"), ("/home/a.smith", "<home>")),
    users=("asmith42", "Ada Smith", "max"),
    hosts=("dgxnode17", "vm"),
    domains=("cluster.example.org",),
    secrets=("pa55/w+rd=x y", "Zq9!", "0123456789abcdefSECRETvalue"),
    addresses=("https://wheels.example.org/simple", "http://127.0.0.1:8080/mirror"),
)
KNOWING = Redactor.of(PRIVATE)
NOTHING = Redactor.of(Private())
TOKEN = "1a2b3c4d5e6f7g8h9i0jKLMNOPQRSTUVWXYZ"
HLO = sorted((ROOT / "tests" / "data" / "hlo").rglob("*.txt"))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('File "/home/jo/x.py", line 3', 'File "<home>/x.py", line 3'),
        ("/Users/jo/x /root/x /root. /data/home/jo/x", "<home>/x <home>/x <home>. <home>/x"),
        (r"C:\Users\jo\x C:\\Users\\jo\\x \/home\/jo\/x", r"<home>\x <home>\\x <home>\/x"),
        ("q=%2Fhome%2Fjo%2Fx&p=file:///home/jo", "q=<home>%2Fx&p=file://<home>"),
        ("/data/groups/lab/mx/repros /data/groups/lab/mxy", "<project>/repros /data/groups/lab/mxy"),
        ("/home/a.smith/.cache/mx/venvs/1/bin /home/a.smith/x", "<store>/venvs/1/bin <home>/x"),
        ("asmith42@dgxnode17:~/w$ ls -l asmith42_old", "<user>@<host>:~/w$ ls -l <user>_old"),
        ("written by Ada Smith on dgxnode17.cluster.example.org.", "written by <user> on <host>."),
        ("dgxnode18.cluster.example.org:1234 and DGXNODE17", "<host>:1234 and <host>"),
        ("max@vm:~$ USER=max HOSTNAME=vm", "<user>@<host>:~$ USER=<user> HOSTNAME=<host>"),
        ("uid=1000(max) ~max/x /scratch/max/run", "uid=1000(<user>) ~<user>/x /scratch/<user>/run"),
        ("uname_result(system='Linux', node='c0ffee')", "uname_result(system='Linux', node='<host>')"),
        ("pa55%2Fw%2Brd%3Dx%20y", "<token>"),
        (r"pa55\/w+rd=x y", "<token>"),
        (f"hf_{TOKEN} ghp_{TOKEN} github_pat_{TOKEN}", "<token> <token> <token>"),
        (f"HF_TOKEN=hf_{TOKEN} sk-proj-{TOKEN} AKIA1234567890ABCDEF", "HF_TOKEN=<token> <token> <token>"),
        ("{'W_API_KEY': 'abcd', \"PASSWORD\": \"x1y2\"}", "{'W_API_KEY': '<token>', \"PASSWORD\": \"<token>\"}"),
        ('os.environ["HF_TOKEN"] = "plain"', 'os.environ["HF_TOKEN"] = "<token>"'),
        ("PASSWORD%3Dhunter2 A_TOKEN=abcd", "PASSWORD%3D<token> A_TOKEN=<token>"),
        ('login(password="hunter2")', 'login(password="<token>")'),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic <token>"),
        ("authorization: bearer abc.def, Bearer a1b2c3d4", "authorization: bearer <token>, Bearer <token>"),
        ("https://jo:pw@example.com/x https://o@example.com", "https://<token>@example.com/x https://<token>@example.com"),
        ("from https://u:p@wheels.example.org/simple/jax/ at wheels.example.org:443", "from <index> at <index>"),
        ("http://127.0.0.1:8080/mirror/jax on 127.0.0.1:9", "<index> on 127.0.0.1:9"),
        ("-----BEGIN RSA PRIVATE KEY-----\nb3Bl\nbnNz=\n-----END RSA PRIVATE KEY-----\nok", "<private key>\nok"),
        ("-----BEGIN PRIVATE KEY-----\\nb3Bl\\nbnNz=", "<private key>"),
        ("mail jo.doe+x@mail.example.com. jo%40example.org", "mail <email>. <email>"),
        ("tcp://10.1.2.3:5000 192.168.0.17 172.20.3.4", "tcp://<ip>:5000 <ip> <ip>"),
        ("10.128.0.2 inet 8.8.4.4/24 [2001:db8::17]:8471", "<ip> inet <ip>/24 [<ip>]:8471"),
        ("ip-10-1-2-3.ec2.internal http://build.lab.internal/x", "<host> http://<host>/x"),
        ("tcp%3A%2F%2F10.1.2.3%3A5000", "tcp%3A%2F%2F<ip>%3A5000"),
        ("ether 52:54:00:ab:cd:ef fe80::5054:ff:feab:cdef", "ether <mac> <ip>"),
        ("run --token abcd1234efgh5678 --password=hunter22", "run --token <token> --password=<token>"),
        ("password: hunter22, my_secret_key = wJalrXUtnFEMI/K7", "password: <token>, my_secret_key = <token>"),
        ("AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMI/K7MDENG", "AWS_SECRET_ACCESS_KEY: <token>"),
        ("get /x?token=abcdef123456&x=1 token=abcdefghijklmnop1234", "get /x?token=<token>&x=1 token=<token>"),
        ("SLURM_JOB_USER=jdoe 'USER': 'jdoe'", "SLURM_JOB_USER=<user> 'USER': '<user>'"),
        ("uid=1000(jdoe) gid=0(root)", "uid=1000(<user>) gid=0(root)"),
        ("SLURM_NODELIST=dgx[01-04] HOSTNAME=dgx17", "SLURM_NODELIST=<host> HOSTNAME=<host>"),
        ("/mnt/beegfs/users/jdoe/x.py /data/home2/jdoe/x /nfs/homes/jdoe/y", "<home>/x.py <home>/x <home>/y"),
        ("2001:db8:85a3::8a2e:370:7334", "<ip>"),
        ("nameserver 10.0.0.53, 10.1.2.3; connect to 10.3.2.1", "nameserver <ip>, <ip>; connect to <ip>"),
        (
            'File "/data/lab7/co/.repromatrix/x" and /mnt/pool/venvs/0af02a98321c2ca235922c06892a4a87-2e/lib',
            'File "<project>/.repromatrix/x" and <store>/venvs/0af02a98321c2ca235922c06892a4a87-2e/lib',
        ),
        ("curl -u jo:hunter2 https://x.example.com", "curl -u <user>:<token> https://x.example.com"),
        ("curl -fsSL --user 'jo:hunter 2' x", "curl -fsSL --user <user>:<token> x"),
        ("curl -ujo:pw y; curl -sSu jo x", "curl -u<user>:<token> y; curl -sSu <user> x"),
        ("wget --user=jo --password=hunter2", "wget --user=<user> --password=<token>"),
        ("docker login -u jo -p hunter2 x.io", "docker login -u <user> -p <token> x.io"),
        ("wandb: Currently logged in as: jo (jo-lab) to api", "wandb: Currently logged in as: <user> to api"),
        ("Logged in to github.com account jo (keyring)", "Logged in to github.com account <user>"),
        ("npm: logged in as 'jo'; logged in as jo.doe@x.org", "npm: logged in as '<user>'; logged in as <email>"),
        ("Set-Cookie: sid=abc; Path=/; Secure\r\nx", "Set-Cookie: <token>\r\nx"),
        ("> cookie: a=b; c=d\nx", "> cookie: <token>\nx"),
        ("{'Set-Cookie': 'sid=abc; Path=/', 'a': 1}", "{'Set-Cookie': '<token>', 'a': 1}"),
        (r'{\"Cookie\": \"sid=abc; b=c\"}', r'{\"Cookie\": \"<token>\"}'),
        ("s3://acme-runs/a/b.py gs://acme_x", "s3://<bucket>/a/b.py gs://<bucket>"),
        (r"s3%3A%2F%2Facme%2Fa gs:\/\/acme.x\/a", r"s3%3A%2F%2F<bucket>%2Fa gs:\/\/<bucket>\/a"),
        ("abfss://box@acme.dfs.core.windows.net", "abfss://<token>@acme.dfs.core.windows.net"),
        ("GPU 0: NVIDIA H200 (UUID: GPU-8f3c2a10-1b2c-3d4e-5f60-718293a4b5c6)", "GPU 0: NVIDIA H200 (UUID: <gpu>)"),
    ],
)  # fmt: skip
def test_private_words_are_replaced(text: str, clean: str) -> None:
    assert KNOWING.redact(text) == clean
    assert KNOWING.redact(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "cublas of the host 13.1.0.3; cudnn of the host 9.19.0.56; loaded: cufft 12.0.0.61 of the host",
        "def f(password: str, api_key: str = None, token=None): --xla_gpu_enable_token=true --max-token 4096",
        "USER 1000:1000 ENV HOME=/tmp token=after-all.1 token=%after-all.1 std::array<int, 2>::size 2026:11:30",
        "curand 10.2.10.91, curand 10.4.0.35; cudart of the host 13.0.96, nccl of the host 2.28.9+cuda13.0",
        "nvidia-curand-cu12==10.3.9.90 nvidia-curand-cu12 10.3.9.90 cudnn 9.10.2.21 driver 580.159.04",
        "image python:3.11-slim-bookworm@sha256:0123abcd memcpy@GLIBC_2.14 f@libc.so g@x.py foo@@GLIBC_2.2.5",
        "y = x@w.T.astype(f); z = a@b.at[0].set(1); q = h@self.weight; r = u@v.mean(0)",
        "token.1 = token[] after-all(); token = lax.create_token(x); key = jax.random.key(0)",
        "TOKENIZERS_PARALLELISM=false MAX_TOKENS=4096 --xla_gpu_enable_token=true",
        "@jax.jit\ndef f(key): return jnp.max(key)",
        "std::__basic_string<char> Basic InstructionSimplifier, the basic ABCDEFGHIJKLMNOPQRST123",
        "/scratch/run jit(f)/jit(main)/max/add reduce_max(x) the max of vm. git@github.com:a/b",
        "see https://github.com/jax-ml/jax/issues/1 and https://example.com/home/page/index.html",
        "2026-11-30 01:01:36.167815: F external/xla/xla/service/hlo_pass_pipeline.cc:234] x",
        "a task-oriented-mask-generation-pipeline-2 disk-12345678901234567890",
        "/rooted /opt/root-2 jit(f)/root/add 127.0.0.1:8471 0.0.0.0:8471 std::fd::open(fd12)",
        "python -u x.py; curl -o x.tgz -L https://example.com/x; curl --url x --user-agent jax; git clone -u origin",
        "a cookie: what a site keeps; cookie = jar.get(x)",
        "you are logged in as root, or logged in as a guest; log in -p 2; login works; see -p 8000",
        "std::gs:// s3 = x; args://x; f32[8] s32[4] gs(x)",
        "pid 0x00007f291a405340 0000:3b:00.0 12:34:56.789 jax0.10.2-cpu-py311",
    ],
)
def test_what_only_looks_private_stays(text: str) -> None:
    assert KNOWING.redact(text) == text


@pytest.mark.parametrize("path", HLO, ids=lambda path: path.name)
def test_hlo_stays_readable(path: Path) -> None:
    """All of it but for the folders that XLA writes into its tables of files."""
    text = path.read_text(encoding="utf-8", errors="replace")
    for old, new in zip(text.splitlines(), KNOWING.redact(text).splitlines(), strict=True):
        assert old == new or "<home>" in new


# ---- planted at random places


@dataclass(frozen=True, slots=True)
class Planted:
    """A secret, and the part of it that must not be found again."""

    text: str
    core: str


LOWER = "bcdfghjkqvwxz"
names = st.text(LOWER, min_size=5, max_size=9)
keys = st.text(LOWER + LOWER.upper() + "0123456789", min_size=30, max_size=40).map(lambda text: f"7{text}Q")
secrets = st.one_of(
    names.map(lambda name: Planted(f"/home/{name}/work", name)),
    names.map(lambda name: Planted(f"/Users/{name}", name)),
    st.tuples(names, names).map(lambda pair: Planted(f"/mnt/home/{pair[0]}/{pair[1].upper()}.py", pair[0])),
    names.map(lambda name: Planted(f"{name}@example.com", name)),
    keys.map(lambda key: Planted(f"ghp_{key}", key)),
    keys.map(lambda key: Planted(f"hf_{key}", key)),
    keys.map(lambda key: Planted(f"sk-{key}", key)),
    keys.map(lambda key: Planted(f"Bearer {key}", key)),
    keys.map(lambda key: Planted(f"SOME_API_TOKEN={key}", key)),
    keys.map(lambda key: Planted(f"https://user:{key}@example.com/x", key)),
    keys.map(lambda key: Planted(f"eyJ{key}.eyJ{key}.{key}", key)),
    st.integers(0, 255).map(lambda part: Planted(f"192.168.{part}.7", f"192.168.{part}.")),
    st.sampled_from([Planted(path, path) for path, _ in PRIVATE.places]),
    st.sampled_from([Planted(name, name) for name in ("asmith42", "Ada Smith", "dgxnode17", *PRIVATE.secrets)]),
    names.map(lambda name: Planted(f"{name}.cluster.example.org", name)),
    names.map(lambda name: Planted(f"https://wheels.example.org/simple/{name}", "wheels.example")),
)  # fmt: skip
edges = st.sampled_from([" ", "\n", '"', "'", "(", ", ", "=", ": ", "<", "[", "\t", "`", "|"])
filler = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Z")), max_size=40)
FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "percent": lambda text: quote(text, safe=""),
    "percent, slashes kept": quote,
    "lower percent": lambda text: quote(text, safe="").replace("%2F", "%2f"),
    "json": lambda text: json.dumps(text)[1:-1],
    "json, slashes escaped": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
}


@settings(max_examples=400, deadline=None)
@given(before=filler, edge=edges, planted=secrets, after=filler, form=st.sampled_from(sorted(FORMS)))
def test_planted_secrets_never_survive(before: str, edge: str, planted: Planted, after: str, form: str) -> None:
    assume(planted.core not in before and planted.core not in after)
    text = f"{before}{edge}{FORMS[form](planted.text)}{edge}{after}"
    clean = KNOWING.redact(text)
    assert planted.core not in clean
    assert FORMS[form](planted.core) not in clean
    assert KNOWING.redact(clean) == clean


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.from_regex(r"%[a-z_]{1,9}\.\d{1,4} = f32\[\d{1,3},\d{1,3}\]\{1,0\} (add|dot|fusion)\(", fullmatch=True),
            st.from_regex(r'  File "(xla|jax/_src)/[a-z_]{1,9}\.(cc|py)", line \d+, in [a-z_]{1,9}', fullmatch=True),
            st.from_regex(r"    @ +0x[0-9a-f]{12}  xla::[A-Z][a-z]{1,8}::[A-Z][a-z]{1,8}\(\)", fullmatch=True),
            st.from_regex(r"(jax|nvidia-[a-z]{2,8}-cu1[23])==\d{1,2}(\.\d{1,2}){1,3}", fullmatch=True),
            st.sampled_from(["max", "the host", "root", "a user's token", "x @ y", "key: value", "50% of 3/4"]),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_text_without_secrets_is_unchanged(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert KNOWING.redact(text) == text
    assert NOTHING.redact(text) == text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=300))
def test_any_text_gives_an_answer_that_settles(text: str) -> None:
    clean = KNOWING.redact(text)
    assert KNOWING.redact(clean) == clean


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "/a", "A_", "a.", "a@", "1.", "%2F", "\\/", "f:", "ff:", "eyJ", "/home/", "a-", "=", '"'),
        *("https://a", "-----BEGIN PRIVATE KEY-----", "10.", "a b ", "[::", "sk-a", "Bearer ", "A_TOKEN", "/home/a/"),
        *(
            "curl ",
            "curl -u ",
            "login ",
            "login -p",
            "cookie: ",
            "Cookie: a",
            "logged in as ",
            "s3://",
            "logged in to a ",
        ),
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    start = time.monotonic()
    KNOWING.redact(piece * (200_000 // len(piece)))
    assert time.monotonic() - start < 10


def test_all_of_a_result_is_redacted() -> None:
    cells = tuple(matrix())
    assert KNOWING.all(cells) == cells
    hidden = KNOWING.all((ATTEMPT, REPRO, Signature("at /home/jo/x.cc", ("asmith42",)), Outcome.OK))
    assert hidden[2:] == (Signature("at <home>/x.cc", ("<user>",)), Outcome.OK)
    assert hidden[1] == REPRO


# ---- this machine


def test_this_machine_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://user:s3cret@pip.example.org/simple\n")
    uv = tmp_path / "config" / "uv"
    uv.mkdir(parents=True)
    (uv / "uv.toml").write_text('[[index]]\nname = "lab"\nurl = "https://uv.example.org/simple"\n')
    environ = {
        "HOME": str(tmp_path),
        "USER": "jdoe99",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PIP_CONFIG_FILE": str(config),
        "UV_INDEX": "lab=https://extra.example.org/simple https://more.example.org/simple",
        "PIP_TRUSTED_HOST": "trusted.example.org",
        "HTTPS_PROXY": "http://jdoe99:pw@proxy.example.org:3128",
        "HOSTNAME": "login7.hpc.example.org",
        "MY_TOKEN": "abcdefgh",
        "SSH_KEY": str(config),
        "TOKENIZERS_PARALLELISM": "false!",
        "DEPLOY_KEY": "/k3y",
        "PIN_PASSWORD": "123456",
        "KEYBOARD": "us-qwerty",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    project = Project(tmp_path / "lab work", tmp_path / "store")
    private = of_this_machine(project, ["https://nightly.example.org/x"], environ)
    assert {"jdoe99"} <= set(private.users)
    assert "root" not in private.users
    assert "login7" in private.hosts
    assert "hpc.example.org" in private.domains
    assert private.secrets == ("abcdefgh",)
    assert {each.partition("://")[2] or each for each in private.addresses} == {
        *("pip.example.org/simple", "uv.example.org/simple", "extra.example.org/simple", "more.example.org/simple"),
        *("trusted.example.org", "proxy.example.org:3128", "nightly.example.org/x"),
    }
    redactor = Redactor.of(private)
    assert redactor.redact(f"{tmp_path}/lab work/x {tmp_path}/store {tmp_path}/y") == "<project>/x <store> <home>/y"
    assert redactor.redact(quote(f"{tmp_path}/lab work/x", safe="")) == "<project>%2Fx"
    assert redactor.redact("login8.hpc.example.org via https://extra.example.org/simple/jax") == "<host> via <index>"
    assert redact("abcdefgh", project) == "<token>"
