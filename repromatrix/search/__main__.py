"""The search with a command as its oracle, in the manner of `git bisect run`.

python -m repromatrix.search --good 1.0 --bad 2.0 1.0 1.1 1.2 2.0 -- ./check.sh {}
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from repromatrix.search.bisect import step
from repromatrix.search.model import Answer, History, Rules, Sample, Verdict

SKIP = 125
"""Exit status by which the command tells that it cannot tell."""

FOUND, NO_CHANGE, USAGE, ABORTED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses of this program."""


class Abort(Exception):
    """The command did not run, or died: that is no verdict on a version."""


def main(argv: Sequence[str] | None = None) -> int:
    """Searches as the command line says, prints each try and the answer, and returns the exit status."""
    typed = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if "--" not in typed:
        parser.parse_args(typed)  # for --help
        parser.error("the command is missing: it follows the versions and --")
    cut = typed.index("--")
    options, command = parser.parse_args(typed[:cut]), typed[cut + 1 :]
    versions: list[str] = options.versions
    if mistake := _mistake(options, command):
        parser.error(mistake)
    claims: tuple[Verdict | None, Verdict | None] = (None, None)
    if options.good:
        first, last = sorted((versions.index(options.good), versions.index(options.bad)))
        versions = versions[first : last + 1]
        claims = (Verdict.GOOD, Verdict.BAD) if versions[0] == options.good else (Verdict.BAD, Verdict.GOOD)
    rules = Rules(confidence=options.confidence, rate=options.rate, most=options.attempts)
    try:
        return _told(_search(History(len(versions), ends=claims), rules, versions, command), versions)
    except Abort as error:
        sys.stderr.write(f"{error}\n")
        return ABORTED
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m repromatrix.search",
        usage="%(prog)s [--good A --bad B] [--confidence C] [--rate R] [--attempts N] VERSION... -- COMMAND {}",
        description="Find where COMMAND starts or stops failing. {} in it is replaced by a version.",
        epilog="COMMAND says good by exit status 0, nothing by 125, bad by any other up to 127; above, the search "
        "stops. Exit status: 0 found, 1 no change found, 2 wrong usage, 3 the command did not run.",
    )
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="oldest first")
    parser.add_argument("--good", default="", metavar="A", help="a version that is good; with --bad, the other end")
    parser.add_argument("--bad", default="", metavar="B", help="a version that is bad")
    parser.add_argument(
        "--confidence", type=_share, default=Rules().confidence, metavar="C", help="default %(default)s"
    )
    parser.add_argument("--rate", type=_share, default=0.0, metavar="R", help="least rate at which a bad version fails")
    parser.add_argument("--attempts", type=_count, default=Rules().most, metavar="N", help="of one version at most")
    return parser


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_share.__name__, _count.__name__ = "number from 0 to below 1", "count above 0"  # what argparse calls them


def _mistake(options: argparse.Namespace, command: Sequence[str]) -> str:
    """What is wrong with the command line beyond its single words; empty = nothing."""
    versions: list[str] = options.versions
    twice = sorted({version for version in versions if versions.count(version) > 1})
    if twice:
        return f"twice among the versions: {', '.join(twice)}"
    if bool(options.good) != bool(options.bad):
        return "--good and --bad go together"
    if options.good and options.good == options.bad:
        return "one version cannot be good and bad"
    for version in filter(None, (options.good, options.bad)):
        if version not in versions:
            return f"{version} is not among the versions"
    if not any("{}" in word for word in command):
        return "the command has no {} for the version"
    return ""


def _search(history: History, rules: Rules, versions: Sequence[str], command: Sequence[str]) -> Answer:
    seen: dict[int, tuple[Sample, ...]] = {}
    while not isinstance(now := step(history, seen, rules), Answer):
        for each in now.tries:
            for _ in range(each.attempts):
                sample = _attempt(command, versions[each.place])
                left = f"{now.left} version{'s' * (now.left != 1)} left"
                sys.stdout.write(f"{versions[each.place]}: {sample} ({now.phase}, {left})\n")
                sys.stdout.flush()
                seen[each.place] = (*seen.get(each.place, ()), sample)
    return now


def _attempt(command: Sequence[str], version: str) -> Sample:
    """One run of the command.

    Raises:
        Abort: It did not start, or ended by a signal or a status that is no verdict.
    """
    words = [word.replace("{}", version) for word in command]
    try:
        status = subprocess.run(words, check=False).returncode
    except (OSError, ValueError) as error:
        raise Abort(f"{words[0]} did not start: {getattr(error, 'strerror', None) or error}") from None
    if status < 0:
        raise Abort(f"{words[0]} was ended by {_name(-status)} with {version}")
    if status > 127:
        raise Abort(f"{words[0]} ended with status {status} with {version}: no verdict is above 127")
    return Sample.GOOD if not status else Sample.NOTHING if status == SKIP else Sample.BAD


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _told(answer: Answer, versions: Sequence[str]) -> int:
    """Prints the answer; the exit status."""
    if answer.refused:
        subject = "" if answer.refused_at is None else f"{versions[answer.refused_at]} "
        sys.stdout.write(f"{subject}{answer.refused}\n")
        return USAGE if answer.refused_at is not None else NO_CHANGE
    for edge in answer.edges:
        between = f", without a verdict between: {' '.join(versions[place] for place in edge.between)}" * bool(
            edge.between
        )
        older, newer = versions[edge.before], versions[edge.after]
        sys.stdout.write(
            f"{newer} is the first {edge.becomes} one after {older} (confidence {edge.confidence:.3g}){between}\n"
        )
    if answer.edges:
        return FOUND
    ambiguous = [versions[place] for place, said in answer.verdicts.items() if said is Verdict.AMBIGUOUS]
    if ambiguous:
        low, high = answer.rate
        sys.stdout.write(
            f"no change is certain: the failure comes and goes (in {low:.2g} to {high:.2g} of the attempts), and "
            f"{answer.passes or 'no number of'} passes would make a version good; ambiguous: {' '.join(ambiguous)}\n"
        )
    else:
        sys.stdout.write("no change was seen\n")
    return NO_CHANGE


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ABORTED)
