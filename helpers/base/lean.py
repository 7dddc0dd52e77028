"""Skip a slow import that reading notebooks does not need; import this module before nbformat.

nbformat imports jsonschema, which imports a grammar of IRIs (URIs beyond ASCII) if it is installed.
No notebook contains an IRI, and building the grammar takes several times as long as nbformat.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # makes the import fail, as if it were not installed
