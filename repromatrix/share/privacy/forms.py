"""What private things look like on any machine, as rules that replace them; and words that are no names.

What only may be private is left alone where it would spoil a report: 10.3.9.90 is a version of nvidia-curand and has
the form of an address, `max` is a name and an operation, `x@y.real` is no e-mail.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Callable

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
"""What is found, and what stands there instead."""

_MORE = """
action actions add admin admins all alpine anonymous any app april art august base bash batch bazel beta bill bin
bitcast broadcast build builder cache call chase ci clamp cloud code compare compile compiler concatenate conditional
constant container convert convolution copy core cpu cuda cudnn daemon data dean debian default dev developer device
divide docker domain dot email engine env err error etc exec exponential fast file flax floor fusion gateway gather
gitlab gpu grace grant group guest guy hlo home host hosts index infeed info iota jack jax jaxlib jenkins job jobs
jupyter kernel lab lance lib linux llvm local localhost log main march mark master maximum may mean miles minimum mlir
model multiply nccl negate net network nick nobody node nodes none norm numpy nvidia operator ops opt orbax out
outfeed pad param parameter params partition pat penny pip pod power project python rank ray recv redhat reduce
replica repro repromatrix reshape reverse rich rng root rose run runner rusty scatter scipy script select send server
service shape shell sign skip slice slurm sort spot src staff stderr stdout store student subtract sum system tanh
target task team temp test tester tests text thread tmp token trace training triton ubuntu unit unknown user username
users usr var victor vm wheel wheels will work worker workspace xla
"""
WORDS = frozenset(
    {name.lower() for name in (*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names)} | set(_MORE.split())
)
"""Names of users and hosts that are words of logs, code and HLO, too."""

SEP = r"(?:/|\\/|\\{1,2}|%2[Ff]|%5[Cc]|\\u002[Ff])"
_AT = r"(?:@|%40|\\u0040|&\#64;|<code>@</code>)"
COLON = r"(?::|%3[Aa])"
_IP = r"(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}"
_PART = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_LARGE = r"(?:6[4-9]|[7-9]\d|\d{3})"
_START = r"(?:(?<![\w.-])|(?<=%2[Ff]))"
_END = r"(?!\w|\.\d)"
_GENERIC = (
    "com|org|net|edu|gov|mil|int|info|biz|dev|app|cloud|tech|xyz|online|site|science|research|systems"
    "|local|localdomain|internal|corp|lan|intranet|example|test|invalid"
)

_SECRET_FORMS = "".join(
    rf"|{form}"
    for form in (
        r"gh[pousr]_[A-Za-z0-9]{16,}",
        r"github_pat_\w{20,}",
        r"glpat-[\w-]{16,}",
        r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}",
        r"(?<![A-Za-z0-9])sk-(?=[\w-]*\d)[\w-]{20,}",
        r"nvapi-[\w-]{20,}",
        r"pypi-Ag[\w-]{20,}",
        r"npm_[A-Za-z0-9]{30,}",
        r"(?:AKIA|ASIA)[A-Z0-9]{16}",
        r"AIza[\w-]{35}",
        r"ya29\.[\w-]{20,}",
        r"xox[abeoprs]-[\w-]{10,}",
        r"(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?",  # a JWT
    )
)[1:]

TOKENS: tuple[Rule, ...] = (
    (
        re.compile(
            r"-----BEGIN[A-Z ]* PRIVATE KEY-----(?:(?!-----BEGIN).)*?-----END[A-Z ]* PRIVATE KEY-----"
            r"|-----BEGIN[A-Z ]* PRIVATE KEY-----[\sA-Za-z0-9+/=\\]*",  # its end was cut off
            re.DOTALL,
        ),
        "<private key>",
    ),
    (re.compile(_SECRET_FORMS), "<token>"),
    (re.compile(r"\b(Bearer[ +]|Bearer%20)(?=\S*\d)[\w.~+/=%-]{8,}"), r"\1<token>"),
    (
        re.compile(
            r"\b((?:proxy-)?authorization|x-api-key|private-token)(\\?[\"']?\s*[:=]\s*\\?[\"']?(?:(?:basic|bearer|token)\s+)?)"
            r"(?!<token>|(?:basic|bearer|token)\s)[^\s\"'\\,;]{4,}",
            re.IGNORECASE,
        ),
        r"\1\2<token>",
    ),
    # The credentials of an address. `git` as the only user is part of public addresses and no secret.
    (
        re.compile(
            r"(?<=://)(?!git@|<)[^\s/@\"'<>]+@(?=[\w\[])|((?:%3[Aa])(?:%2[Ff]){2})(?:(?!%2[Ff])[\w.~%-])+%40(?=\w)"
        ),
        r"\1<token>@",
    ),
    # A variable in a listing, a shell or a dictionary; not `token = create_token(x)`, nor `f32[] token`.
    (
        re.compile(
            r"\b([A-Z0-9_]{0,60}(?:TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_KEY|PRIVATE_KEY)"
            r"[A-Z0-9_]{0,60})(=|%3[Dd]|\\?[\"']\]?\s*[:=,]\s*(?=\\?[\"']))(\\?[\"']?)(?!<token>|\d+\b|true|false)[^\s\"'\\]{4,}"
        ),
        r"\1\2\3<token>",
    ),
    (
        re.compile(
            r"\b(password|passwd|passphrase|api_?key|secret(?:_key)?|(?:access|auth|refresh)_token)"
            r"(\\?[\"']?\s*[:=]\s*\\?[\"'])(?!<token>)[^\s\"'\\]{4,}(?=\\?[\"'])",
            re.IGNORECASE,
        ),
        r"\1\2<token>",
    ),
    # An option of a command; not --xla_gpu_enable_token=true.
    (
        re.compile(
            r"(?<!\S)(--?(?:[a-z]{1,20}-){0,3}(?:token|password|passwd|passphrase|secret|api-?key)(?:=|[ ]{1,4})[\"']?)"
            r"(?!<token>|\d+\b|true|false|-)[^\s\"'\\]{4,}"
        ),
        r"\1<token>",
    ),
    # Without quotes a value has digits: `password: str` is Python.
    (
        re.compile(
            r"\b((?:password|passwd|passphrase|[a-z_]{0,30}(?:secret|access|api)_key|[A-Z_]{0,40}(?:SECRET|TOKEN|PASSWORD|_KEY))"
            r"[ ]{0,4}[:=][ ]{0,4})(?=[^\s\"'\\\d]{0,80}\d)(?!<token>|\d+\b)[^\s\"'\\(),]{6,}"
        ),
        r"\1<token>",
    ),
    # What `curl -u` takes: a name, or a name and a password.
    (
        re.compile(
            r"(\b(?:curl|wget)\b[^\n;|&]{0,200}?\s"
            r"(?:(?:--(?:proxy-)?user|-[A-Za-z]{0,6}[uU])[ =]{1,4}|-[uU](?=[^\s=-])))"
            r"(\"[^\"\n]+\"|'[^'\n]+'|(?![\"'<-])[^\s\"']+)"
        ),
        lambda found: found[1] + ("<user>:<token>" if ":" in found[2] else "<user>"),
    ),
    # `docker login -u NAME -p PASSWORD`
    (re.compile(r"(\blogin\b[^\n;|&]{0,200}?\s-p[ =]{0,4})(?![<-])[^\s\"'-][^\s]*"), r"\1<token>"),
    (re.compile(r"(\blogin\b[^\n;|&]{0,200}?\s(?:-u|--username)[ =]{1,4})(?![<-])[^\s]+"), r"\1<user>"),
    # Cookies, in a header or in a dictionary of headers: all of them, to the end of the line or of the text.
    (
        re.compile(
            r"\b((?:set-)?cookie2?\\?[\"']?:[ ]{0,4}\\?[\"']?)(?!<token>)(?=[^\s\"'=;,:]{1,100}=)[^\r\n\"'\\]*",
            re.IGNORECASE,
        ),
        r"\1<token>",
    ),
    (re.compile(r"\b(token=)(?=[\w.-]{0,40}\d)[\w.-]{16,}"), r"\1<token>"),
    (
        re.compile(
            r"(?<=[?&])((?:access_|auth_)?token|sig|X-Amz-(?:Signature|Credential|Security-Token))=[^\s&\"'<>]{4,}"
        ),
        r"\1=<token>",
    ),
)

PEOPLE: tuple[Rule, ...] = (
    # Not `a@b.at[0]`, which is Python, nor `f@libc.so`, which is a symbol.
    (
        re.compile(
            rf"(?<![\w.+-])(?!git{_AT}|(?:no-?reply|[\w+]+){_AT}(?:users\.)?noreply\.)[\w.+-]+{_AT}(?:[\w-]+\.)+"
            rf"(?:(?!py|so|cc)[a-z]{{2}}(?![(\[])|{_GENERIC})(?![\w-]|\.\w)"
        ),
        "<email>",
    ),
    # Who wandb, gh, npm, huggingface-cli, docker, ... say that one is: "Currently logged in as: jo (lab)".
    (
        re.compile(
            r"\b([Ll]ogged in(?: (?:to|on|at) [^\s]{1,80})? (?:as:?|account) (?:user )?[\"'`]?)"
            r"(?!root\b|an?\b|the\b|your?\b|user\b)[A-Za-z0-9_][\w.+-]*(?: \([A-Za-z0-9_][\w.-]*\))?"
        ),
        r"\1<user>",
    ),
    # A prompt or a place of scp: jo@node7:~/work$
    (re.compile(r"(?<![\w.+/-])[a-z_][\w.-]*@[A-Za-z][\w.-]*(?=:[~/])"), "<user>@<host>"),
    # Variables and ids of any machine; the container's own user is root or a number.
    (
        re.compile(
            r"\b((?:SLURM_JOB_|SUDO_)?USER|LOGNAME|USERNAME)(\\?[\"']?\s{0,2}=\s{0,2}\\?[\"']?|[\"']:\s{0,2}[\"'])(?!root\b)[a-z_][\w.-]{1,40}"
        ),
        r"\1\2<user>",
    ),
    (
        re.compile(r"\b((?:SLURMD_NODE|HOST)NAME|SLURM_(?:JOB_)?NODELIST)(=[\"']?)(?!localhost\b)[\w.\[\],-]{2,}"),
        r"\1\2<host>",
    ),
    (re.compile(r"\b([ug]id=\d+\()(?!root\))[\w.-]{1,40}(?=\))"), r"\1<user>"),
    # platform.uname() as jax.print_environment_info() prints it
    (re.compile(r"\bnode='(?!<host>)[^']+'"), "node='<host>'"),
    (re.compile(r"(ssh-(?:rsa|ed25519|dss) )AAAA[\w+/=]+"), r"\1<key>"),
)

_NAME = r"(?:(?!%2[Ff]|%5[Cc])[\w.@+%-])*(?:(?!%2[Ff]|%5[Cc])[\w@+%-])"
_HOME = re.compile(
    # An address is taken as a whole, so that `/home/` in it is left alone; its query is not part of it.
    rf"(?P<address>https?://[\w.:@-]+(?:/[\w.~%+-]*)*)"
    rf"|(?:[A-Za-z]:(?={SEP}))?(?:(?<![\w.])(?:/[\w.-]+)+?)?{SEP}(?:homes?\d*|[Uu]sers){SEP}{_NAME}"
    rf"|(?<![\w.)>\]-])/root(?![\w-]|\.\w)|%2[Ff]root(?=%2[Ff])|(?<![\w\\])\\/root(?=\\/)"
)

# Folders of this tool on any machine: a checkout's state, and the store's environments.
_FOLDERS = r"(?<![\w.>-])(?:/(?!home/|root/|Users/)[\w.@+-]+)+"
TOOLS: tuple[Rule, ...] = (
    (re.compile(rf"{_FOLDERS}(?=/\.repromatrix/)"), "<project>"),
    (re.compile(rf"{_FOLDERS}(?=/(?:venvs|trees)/[0-9a-f]{{32}})"), "<store>"),
)

HOMES: Rule = (_HOME, lambda found: found["address"] or "<home>")
"""The home folder of any user."""

NETWORK: tuple[Rule, ...] = (
    (re.compile(r"(?<![\w:-])(?:[0-9a-fA-F]{2}(?:[:-]|%3[Aa])){5}[0-9a-fA-F]{2}(?![\w:-])"), "<mac>"),
    (re.compile(rf"{_START}(?:192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.{_PART}){{2}}{_END}"), "<ip>"),
    # 10.3.9.90 may be a version, and curand, the only one with such, is at 10.2 to 10.4: there the parts of an address
    # are large, or it has a port, or something before it tells.
    (re.compile(rf"{_START}10\.(?:[0156789]|\d\d\d?)(?:\.{_PART}){{2}}{_END}"), "<ip>"),
    (re.compile(rf"{_START}10\.(?:{_LARGE}\.\d{{1,3}}|\d{{1,3}}\.{_LARGE})\.{_PART}{_END}"), "<ip>"),
    (re.compile(rf"{_START}{_IP}(?={COLON}\d{{2,5}}\b|/\d\d\b(?![\w.]))"), "<ip>"),
    # "cublas of the host 13.1.0.3" is how this tool names the version of a library, and no address.
    (
        re.compile(
            rf"((?<=://)|(?<=@)|\b(?:inet|addr|address|ip|peer|(?<!of the )host|coordinator"
            rf"|connect(?:ed|ing|ion)? (?:to|from))[ :=]+){_IP}{_END}"
        ),
        r"\1<ip>",
    ),
    (re.compile(r"(?<![\w:.])(?:fe80|f[cd][0-9a-f]{2}):(?:[0-9a-f]{0,4}:){1,6}[0-9a-f]{1,4}(?![\w:])"), "<ip>"),
    (
        re.compile(r"(?<![\w:.])[23][0-9a-f]{3}(?::[0-9a-f]{1,4}){1,5}::(?:[0-9a-f]{1,4}:){0,5}[0-9a-f]{1,4}(?![\w:])"),
        "<ip>",
    ),
    (re.compile(r"\[(?=[0-9a-f:]*:[0-9a-f:]*:)(?!::1\]|::\])[0-9a-f:]{6,}\](?=:\d)"), "[<ip>]"),
    (re.compile(r"((?<=://)|(?<=@))[\w-]+(?:\.[\w-]+)*\.(?:internal|corp|lan|intranet|localdomain)\b"), r"\1<host>"),
    (re.compile(r"(?<![\w.-])ip-\d+-\d+-\d+-\d+(?:\.[\w-]+)*"), "<host>"),  # a node of EC2, named after its address
    # A bucket, whose name is often a company's or a lab's.
    (
        re.compile(rf"(?<![\w+-])((?:s3[an]?|gs|gcs|r2|abfss?|wasbs?){COLON}{SEP}{SEP})(?![<%])[A-Za-z0-9][\w.-]*"),
        r"\1<bucket>",
    ),
    (re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"), "<gpu>"),
)
