"""Hostile input for as long as it is given (`make fuzz`): changed and grown samples of everything that is decoded.

Two engines. Ours draws from a seed and changes JSON as JSON; atheris, where it is installed, is led by which lines of
the decoders its input reaches, and writes what it finds under .cache/fuzz. Each ends at the first thing that is neither
decoded nor refused by an error of ours, or takes too long or too much, and says how to see it again.
"""

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
_FOUND = Path(".cache") / "fuzz"


def by_seed(seed: int, seconds: float, only: str) -> int:
    """Runs from this seed on for so long; the exit code."""
    from hostile import TARGETS, attack, mutated

    targets = [target for target in TARGETS if only in target.name]
    ends_s, tried, decoded = time.monotonic() + seconds, 0, 0
    while time.monotonic() < ends_s:
        for target in targets:
            data = mutated(target, random.Random(f"{seed} {target.name}"))
            try:
                decoded += attack(target, data)
            except BaseException as error:
                if not isinstance(error, KeyboardInterrupt):
                    again = f'make fuzz SEED={seed} SECONDS=0.001 ONLY="{target.name}"'
                    print(f"fuzz: {target.name} at seed {seed}: {error!r}\nfuzz: again: {again}", file=sys.stderr)
                raise
            tried += 1
        seed += 1
    print(f"fuzz: {tried:,} inputs in {seconds:g} s, {decoded:,} decoded, the others refused; next seed {seed}")
    return 0


def by_coverage(seconds: float, only: str) -> None:
    """Lets atheris lead. The first byte of its input chooses the target, the rest is the layer."""
    import atheris
    import pandas  # noqa: F401  # pyarrow imports it at a first conversion, for seconds, which would be an input's

    import totalorder.sequencer.kernel  # noqa: F401  # first: numba cannot compile what is instrumented

    with atheris.instrument_imports(include=["totalorder.sequencer", "totalorder.streaming.record"]):
        from hostile import TARGETS, attack

    targets = [target for target in TARGETS if only in target.name]
    corpus = _FOUND / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for at, target in enumerate(targets):
        for number, sample in enumerate(target.samples):
            (corpus / f"sample-{at}-{number}").write_bytes(bytes([at]) + sample)

    def one(data: bytes) -> None:
        if data:
            attack(targets[data[0] % len(targets)], data[1:])

    options = [f"-max_total_time={int(seconds)}", f"-artifact_prefix={_FOUND}/", "-timeout=10", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", default="", help="of the targets, those whose name has this")
    parser.add_argument("--engine", choices=["seed", "atheris"], default="seed")
    given = parser.parse_args()
    if given.engine == "seed":
        return by_seed(given.seed, given.seconds, given.only)
    by_coverage(given.seconds, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
