"""``python -m pipeline SCRIPT``, which is ``divisible run SCRIPT``.

A file or folder ``pipeline`` where it is called hides this one.
"""

import sys

from pipeline import scripts

if __name__ == "__main__":
    if sys.argv[1:2] in ([], ["-h"], ["--help"]):
        print(scripts.__doc__)
        sys.exit(0 if sys.argv[1:] else 2)
    scripts.run_script(sys.argv[1:])
