"""What a notebook shows of kernels: marks where code is new, folds, a plain form that fits a page,
and HTML in which nothing of a source is taken for a tag. nbval compares the listings themselves."""

import re
from html.parser import HTMLParser

import pytest

from helpers.page import show
from helpers.run.check import check_softmax
from helpers.run.launch import launch, simulate
from helpers.run.references import make_input, poisoned
from tests.helpers.sources import raw

LISTED = re.compile(r" *(\d+) ([+ ]) (.*)")


@pytest.fixture
def shown(monkeypatch) -> list[dict[str, str]]:
    """What was displayed, by kind; its plain forms are held to a page."""
    found: list[dict[str, str]] = []

    def display(bundle, raw) -> None:
        assert raw and all(len(line) <= 80 for line in bundle["text/plain"].splitlines())
        found.append(bundle)

    monkeypatch.setattr("IPython.display.display", display)
    return found


def listed(plain: str) -> list[tuple[int, str, str]]:
    """(number, mark, text) of the lines of a listing; lines that go on are left out."""
    matches = [LISTED.fullmatch(line) for line in plain.splitlines()]
    return [(int(match[1]), match[2], match[3]) for match in matches if match]


class Text(HTMLParser):
    """The text of HTML, a line feed after each line of code; every tag is closed."""

    ALLOWED = {"div", "pre", "span", "details", "summary"}

    def __init__(self, page: str):
        super().__init__()
        self.text, self.open = "", []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes) -> None:
        assert tag in self.ALLOWED and {name for name, _ in attributes} <= {"style"}, tag
        self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag
        self.text += "\n" if tag in ("div", "summary") else ""

    def handle_data(self, data) -> None:
        self.text += data


def of_html(page: str) -> list[tuple[int, str, str]]:
    return listed("\n".join(line.rstrip() for line in Text(page).text.split("\n")))


# ---- a kernel ---------------------------------------------------------------------------------


def test_comments_and_white_space_are_not_new(shown) -> None:
    old = "__global__ void f(int* y)\n{\n    y[0] = 1;  // once\n    y[1] = 2;\n}\n"
    new = (
        "// Said anew.\n\n__global__ void f(int* y)\n{\n  /* and\n  here */\n"
        "        y[0] = 1;  // and again  \n    y[1] = 3;\n}\n"
    )
    show.kernel(new, since=old)
    assert [row for row in listed(shown[0]["text/plain"]) if row[1] == "+"] == [
        (8, "+", "    y[1] = 3;")
    ]


# ---- its body ---------------------------------------------------------------------------------


OPTIONS = """extern "C" __global__ void f(float* y)
{
    // Drawn before it is needed.
#pragma unroll
    for (int k = 0; DROP && k < 4; ++k) {
        y[k] = 0.0f;
    }
    if (DROP && y[0] > 0.0f)
        y[1] = 0.0f;
    if (DROP) y[2] = (1.0f);
#pragma unroll
    for (int k = 3; DROPS && k < 4; ++k) y[k] = 1.0f;
    if (!DROP) y[4] = 1.0f;
    if (DROP || y[5] > 0.0f) y[5] = 1.0f;
    if (DROP) {
        y[6] = 1.0f;
    } else {
        y[7] = 1.0f;
    }
    y[10] = DROP ? 1.0f : 0.0f;
}
"""


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("12_fused.cu", {"fold": ("rduce",)}, "no section or condition rduce, but load, reduce, "),
        (OPTIONS, {"fold": ("OTHER",)}, "kernel.cu has no section or condition OTHER, but none"),
        ("03_shared.cu", {"also": ("merg",)}, "no function merg, but merge, softmax_shared"),
    ],
)
def test_a_part_that_is_not_there_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        show.kernel(name, **options)


def test_sections_and_statements_of_options_are_folded_in_their_place(shown) -> None:
    show.kernel(OPTIONS, fold=("DROP",))
    plain, page = shown[0]["text/plain"], shown[0]["text/html"]
    assert [number for number, _, _ in listed(plain)] == [1, 2, *range(11, 22)]
    assert plain.splitlines()[3] == "       ... if (DROP), 8 lines"
    assert re.findall("<summary[^>]*>(.*?)</summary>", page) == ["⋯ if (DROP), 8 lines"]
    assert [number for number, _, _ in of_html(page)] == [*range(1, 22)]
    show.kernel("12_fused.cu", fold=("exchange",))
    assert "    // ---- load" in shown[1]["text/plain"]
    assert "    ... exchange, 28 lines\n" in shown[1]["text/plain"]


def test_braces_in_texts_and_comments_end_nothing(shown) -> None:
    show.kernel(
        "__device__ int one() { asm(\"}\"); /* } */ return '{'; }  // }\n\n"
        "#define OPEN {\n\n"
        '__global__ void f()\n{\n    asm("{");\n\n    one();\n}\n\n'
        "struct S {\n    int f() { return 1; }\n};\n",
        also=("f",),
    )
    plain = shown[0]["text/plain"]
    assert [number for number, *_ in listed(plain)] == [5, 6, 7, 9, 10]
    assert "... one, 3 lines" in plain and "... S, 3 lines" in plain


# ---- HTML -------------------------------------------------------------------------------------


def test_source_is_no_markup(shown) -> None:
    code = (
        "template <typename T> __global__ void f(T* y)\n{\n"
        '    if (y < y && 1 > 0) y[0] = "<b>&amp;</b>"[0];  // f<<<1, 2>>>(y) </pre><script>\n}\n'
    )
    show.kernel(code)
    page = shown[0]["text/html"]
    assert "<b>" not in page and "<script>" not in page
    assert of_html(page)[2][2] == code.splitlines()[2]


# ---- findings ---------------------------------------------------------------------------------

BARRIER = ("        __syncthreads();  // the next level reads what this one wrote\n", "")


def run(*changes: tuple[str, str]):
    x = make_input(2, 300)
    return simulate(raw("03_shared", *changes), 2, 256, (x, poisoned(x), 2, 300), 2048)


def test_a_broken_kernel_is_shown_without_a_traceback(capsys, monkeypatch) -> None:
    """As IPython prints what a cell raises."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    x = make_input(2, 300)

    def broken(*changes: tuple[str, str]) -> None:
        launch(raw("03_shared", *changes), 2, 256, (x, poisoned(x), 2, 300), 2048)

    def wrong() -> None:
        check_softmax(x, x)

    shell = InteractiveShell()
    shell.user_ns.update(broken=broken, wrong=wrong, BARRIER=BARRIER)
    for cell, name, marked in (
        ("broken(BARRIER)", "KernelBug", 52),
        ("broken(('sum = sums[0]', 'sum = sms[0]'))", "CompileError", 57),
        ("broken(('block = 256, grid', 'block 256, grid'))", "HeaderError", 5),
        ("wrong()", "WrongResult", 0),
    ):
        shell.run_cell(cell)
        printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert printed.startswith(f"{name}: ") and "Traceback" not in printed, printed
        assert not marked or re.search(rf"^  {marked} > ", printed, re.MULTILINE), printed


# ---- tables -----------------------------------------------------------------------------------


HEAD = ["step", "sectors a load", "GB/s"]


def test_a_table_is_aligned(shown) -> None:
    show.table(HEAD, [["02_online", 32, 310.22], ["`3|`", 4, 2281.94]], ["", "", ".1f"])
    assert shown[0]["text/plain"].splitlines() == [
        "step       sectors a load    GB/s",
        "02_online              32   310.2",
        "`3|`                    4  2281.9",
    ]
    assert shown[0]["text/markdown"].splitlines()[1::2] == [
        "|:---|---:|---:|",
        r"| \`3\|\` | 4 | 2281.9 |",
    ]
    with pytest.raises(ValueError, match="the table is 92 columns wide, more than 80"):
        show.table(HEAD, [["x" * 70, "1", "2"]])
    with pytest.raises(ValueError):
        show.table(HEAD, [["a", "1"]])
