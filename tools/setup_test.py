#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of setup: what it says, and that it installs only where it may.  Nothing is installed: apt is played."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent
FEDORA = 'ID=fedora\nVERSION_ID=40\n'
DEBIAN_12 = 'ID=debian\nVERSION_ID="12"\n'
THERE = "coreutils  # lists files [ls]\n"
MISSING = "libnowhere-dev  # sums without rounding [nowhere/at_all.h]\n"

# Nothing is installed, and apt says what it would fetch.  Calls are noted.
DPKG = "#!/bin/sh\nexit 1\n"
APT = """#!/bin/sh
echo "apt-get $*" >>"$CALLS"
case "$*" in *--assume-no*) printf '0 upgraded, 1 newly installed, 0 to remove.\nNeed to get 1234 kB of archives.\n' ;; esac
"""
NOT_ROOT = "#!/bin/sh\necho 1000\n"
SUDO = '#!/bin/sh\necho "sudo $*" >>"$CALLS"\n'


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "packages").mkdir()
        (self.folder / "bin").mkdir()
        shutil.copy(TOOLS / "setup", self.folder / "setup")
        self.play("dpkg-query", DPKG)
        self.play("apt-get", APT)
        self.play("id", NOT_ROOT)
        self.play("sudo", SUDO)

    def play(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run_setup(self, os_release, lists):
        for name, text in lists.items():
            (self.folder / "packages" / f"{name}.txt").write_text(text)
        (self.folder / "os-release").write_text(os_release)
        calls = self.folder / "calls"
        calls.write_text("")
        environment = {k: v for k, v in os.environ.items() if k != "STRETTO_SKIP_SETUP"}
        environment.update(STRETTO_OS_RELEASE=str(self.folder / "os-release"), CALLS=str(calls),
                           PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}")
        done = subprocess.run([self.folder / "setup", *lists], env=environment, capture_output=True, text=True,
                              timeout=60, check=False)
        return done, calls.read_text().splitlines()

    def test_elsewhere_it_prints_what_is_missing_and_ends_with_3(self):
        done, calls = self.run_setup(FEDORA, {"build": THERE + MISSING})
        self.assertEqual(done.returncode, 3)
        self.assertIn("not Debian 12", done.stderr)
        self.assertIn("  " + MISSING.strip(), done.stderr.splitlines())
        self.assertNotIn("coreutils", done.stderr)
        self.assertEqual(calls, [])

    def test_elsewhere_with_everything_there_it_is_content(self):
        done, calls = self.run_setup(FEDORA, {"build": THERE})
        self.assertEqual((done.returncode, done.stderr, calls), (0, "", []))

    def test_another_debian_is_elsewhere(self):
        done, calls = self.run_setup(DEBIAN_12.replace("12", "11"), {"build": MISSING})
        self.assertEqual((done.returncode, calls), (3, []))

    def test_on_debian_12_it_says_what_and_how_much_before_it_installs(self):
        done, calls = self.run_setup(DEBIAN_12, {"build": MISSING})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("setup: installs libnowhere-dev", done.stderr)
        self.assertIn("setup: Need to get 1234 kB", done.stderr)
        # Asked without the right to install, and installed with it.
        self.assertRegex(calls[-2], "^apt-get .*--assume-no.* libnowhere-dev$")
        self.assertRegex(calls[-1], "^sudo .*apt-get install .* libnowhere-dev$")

    def test_without_a_list_of_that_name_it_ends_with_2(self):
        done, _ = self.run_setup(FEDORA, {"build": THERE})
        self.assertEqual(done.returncode, 0)
        self.assertEqual(subprocess.run([self.folder / "setup", "nosuch"], capture_output=True, check=False).returncode, 2)


class Lists(unittest.TestCase):
    def test_each_line_has_a_package_a_reason_and_a_probe(self):
        lists = sorted((TOOLS / "packages").glob("*.txt"))
        self.assertGreater(len(lists), 3)
        for path in lists:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                self.assertRegex(line, r"^[a-z0-9][a-z0-9.+-]* +# \S[^\[\]]*\S \[[^\[\] ]+\]$", f"{path.name}:{number}")


if __name__ == "__main__":
    unittest.main()
