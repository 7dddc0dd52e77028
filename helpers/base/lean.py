"""Import this before anything that reads notebooks: it skips a slow import that nothing needs.

nbformat imports jsonschema, which imports a grammar of internationalised addresses if that is
installed. No notebook contains such an address, and building the grammar takes several times as
long as importing nbformat.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # as if it were not installed
