"""What the tests of kernel files share."""

from tests.helpers.export.conftest import kernel_files_are_read_once  # noqa: F401
