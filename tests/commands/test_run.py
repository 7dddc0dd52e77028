"""`make run`: what its command line refuses."""

import pytest

from helpers.commands import run


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--force"], "--force rewrites what --save saves: give both"),
        (["--jobs", "0"], "0 is below 1"),
        (["--jobs", "-1"], "-1 is below 1"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options, complaint, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(options)
    assert complaint in capsys.readouterr().err
