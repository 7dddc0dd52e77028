"""Make .venv and install the pinned packages; `make run` and `make test` run this file with
`python3`.

Uses only the standard library and parses on Python 3.6, so that an old Python gets a sentence
instead of a SyntaxError.
"""

import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMP = VENV / "installed.txt"  # make compares its age with the locks'
DRIVER = Path("/proc/driver/nvidia/version")

PYTHONS = [(3, minor) for minor in range(14, 9, -1)]  # newest first; CuPy has wheels for these
MACHINES = {"linux": ("x86_64", "aarch64"), "win32": ("amd64", "arm64")}
OLDEST_DRIVER = {13: 580, 12: 525}  # by CUDA major

CHECK = "import cupy; from cuda.bindings import nvrtc; assert not nvrtc.nvrtcVersion()[0].value"


class MissingRequirement(Exception):
    """One sentence that tells the user what is missing and what to do."""


def other_python() -> "str | None":
    """The newest usable Python on PATH, or None.

    It is started, not only looked up: a version manager may put a stub on PATH for a version that
    is not activated.
    """
    for major, minor in PYTHONS:
        path = shutil.which(f"python{major}.{minor}")
        probe = f"import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if path and subprocess.call([path, "-c", probe], **quiet) == 0:
            return path
    return None


def check_machine() -> None:
    """Raise MissingRequirement if there are no wheels of CuPy and NVRTC."""
    machine = platform.machine().lower()
    musl = "musl" in (sysconfig.get_config_var("SOABI") or "")  # Alpine
    if machine not in MACHINES.get(sys.platform, ()) or musl:
        system = "macOS" if sys.platform == "darwin" else f"{sys.platform} on {machine}"
        raise MissingRequirement(
            f"CuPy and NVRTC have no wheels for {'Linux without glibc' if musl else system}: run "
            "make run in a Debian or Ubuntu container (x86-64; arm64 is untested), or open the "
            "notebooks in Colab (untested)."
        )


def driver_version() -> "str | None":
    """The NVIDIA driver's version, such as "580.65.06", or None without a driver."""
    try:  # a container may have no nvidia-smi, which may take seconds to wake the GPU
        text = DRIVER.read_text().partition("\n")[0]
    except OSError:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = done.stdout if done.returncode == 0 else ""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return found.group() if found else None


def choose(driver: "str | None") -> "tuple[int, str]":
    """The CUDA major to install for a driver, and the line that says why."""
    replay = "kernels run on the SIMT machine and timings are replayed from the records."
    if driver is None:
        return 13, f"CUDA 13 packages; no NVIDIA GPU here, so {replay}"
    for major, oldest in OLDEST_DRIVER.items():
        if int(driver.split(".")[0]) >= oldest:
            return major, f"CUDA {major} packages, for NVIDIA driver {driver}."
    return 13, (
        f"CUDA 13 packages; NVIDIA driver {driver} is too old for them (580 for CUDA 13, 525 for "
        f"CUDA 12), so {replay}"
    )


def venv_python() -> Path:
    """Where .venv has its interpreter."""
    return VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def step(command: "list[str]", otherwise: str) -> None:
    """Run a command, which says itself what fails. Raises MissingRequirement with the sentence
    `otherwise`."""
    try:
        status = subprocess.call(command)
    except OSError as error:
        status, otherwise = 1, f"{otherwise} ({error})"
    if status:
        raise MissingRequirement(otherwise)


def install(major: int) -> None:
    """Bring .venv to the state that the lock names.

    Raises MissingRequirement if the environment cannot be made, pip fails, or packages do not load.
    """
    lock = ROOT / "requirements" / f"cuda{major}.txt"
    kind = "CUDA {}, Python {}.{}".format(major, *sys.version_info[:2])
    # A missing stamp says that the last run did not finish. An environment for another CUDA or
    # Python is made anew, because two CuPy wheels would overwrite each other.
    if STAMP.is_file() and STAMP.read_text().startswith(kind):
        STAMP.unlink()
    else:
        make = [sys.executable, "-m", "venv", "--clear", str(VENV)]
        step(make, "Could not make .venv: remove it and try again.")
    print(f"Installing requirements/{lock.name} (up to 300 MB to download) ...", flush=True)
    python = str(venv_python())
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    pip += ["--only-binary", ":all:", "--require-hashes", "--no-deps"]  # the lock names everything
    pip += ["--no-compile"]  # most of JupyterLab is never imported; what is, is compiled then
    says = "pip could not install the packages: check the network connection, then try again."
    step([*pip, "-r", str(lock)], says)
    says = "CuPy or the NVRTC wheel is installed but does not load: run make clean, then try again;"
    step([python, "-c", CHECK], f"{says} on Windows, install the Visual C++ runtime first.")
    STAMP.write_text(kind + "\n")


def main() -> int:
    """Set up the environment; return 0, or 1 after one sentence on stderr."""
    version = "{}.{}".format(*sys.version_info[:2])
    try:
        check_machine()
        if tuple(sys.version_info[:2]) not in PYTHONS:
            python = other_python()
            if python is None:
                raise MissingRequirement(
                    f"This is Python {version}; install one from 3.10 to 3.14, such that "
                    "python3.13, say, is on PATH, and try again."
                )
            print(f"python3 is {version}; using {Path(python).name} instead.", flush=True)
            return subprocess.call([python, str(Path(__file__).resolve())])
        major, why = choose(driver_version())
        print(why, flush=True)
        install(major)
    except MissingRequirement as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command again finishes the set-up", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
