"""Imported before anything that reads notebooks: leaves out what a library imports for nothing.

nbformat imports jsonschema, and that a grammar of addresses beyond ASCII where it is installed. No
notebook has such an address, and to build the grammar takes several times as long as nbformat.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # as if it were not installed
