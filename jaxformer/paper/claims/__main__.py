"""Measures a claim about the Transformer: prints its figures, and draws them with --output."""

import argparse
import sys
from collections.abc import Sequence

from jaxformer.errors import exit_code
from jaxformer.files import local_path, write_file
from jaxformer.paper import claims
from jaxformer.paper.claims.claim import Claim
from jaxformer.registry import find_entries


def main(arguments: Sequence[str] | None = None) -> None:
    known = find_entries(claims, Claim)
    options = _parser(known).parse_args(arguments)

    claim = known[options.claim]
    figures = claim.measure()
    report = claim.report(figures)
    print(report)

    if options.output is not None:
        write_file(options.output / f"{claim.name}.md", report.encode())
        picture = options.output / f"{claim.name}.png"
        claim.draw(figures, picture)
        print(picture)


def _parser(known: dict[str, Claim]) -> argparse.ArgumentParser:
    width = max(map(len, known))
    lines = [f"  {claim.name:{width}}  {claim.says}" for claim in known.values()]
    parser = argparse.ArgumentParser(
        prog="python -m jaxformer.paper.claims",
        description=__doc__,
        epilog="\n".join(["claims:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "claim",
        metavar="CLAIM",
        choices=list(known),
        help="one of the list below",
    )
    parser.add_argument(
        "--output",
        type=local_path,
        metavar="DIR",
        help="folder for the figures and a picture",
    )
    return parser


if __name__ == "__main__":
    sys.exit(exit_code(main))
