#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the results that tests/run recorded and prints the table, the failures and the skips with their reasons.

The manifest has a line for each result: suite, kind, path, exit code (tabs between). Kinds: meson (a testlog in JSON
lines; the cases of cmocka and TAP programs count one by one), junit, fuzz (a directory of NAME.rc and NAME.log), lint,
end (the stage's own exit code). The last line is "N passed, N failed, N skipped"; exit 1 on a failure or when nothing
ran.
"""
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

CMOCKA = re.compile(r"^\[\s*(RUN|OK|FAILED|SKIPPED|ERROR)\s*\]\s+(\S.*?)\s*$")
CMOCKA_COUNT = re.compile(r"^\d+ test\(s\)")
TAP = re.compile(r"^(not ok|ok)\b\s*\d*\s*-?\s*([^#]*?)\s*(?:#\s*(SKIP|TODO)\b\s*(.*))?$", re.I)
SANITIZER = re.compile(r"^.*(?:runtime error: |SUMMARY: \w+Sanitizer).*$", re.M)


class Suite:
    def __init__(self, name):
        self.name = name
        self.passed = 0
        self.failed = []  # (test, reason)
        self.skipped = []  # (test, reason)


def short(text):
    return text if len(text) <= 200 else text[:197] + "..."


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def cmocka_cases(out):
    """Yields (case, status, what it printed) of a cmocka program's standard output."""
    printed = []
    done = set()
    for line in out.splitlines():
        m = CMOCKA.match(line)
        if not m:
            printed.append(line)
            continue
        status, name = m.groups()
        if CMOCKA_COUNT.match(name):
            continue
        if status == "ERROR" and name.startswith("--- "):
            printed.append(name)
        elif status == "RUN":
            printed = []
        elif name not in done:  # failures and skips are listed again at the end
            done.add(name)
            if status in ("FAILED", "ERROR"):
                why = " ".join(p.replace("[   LINE   ] ---", "at").removeprefix("--- ").strip() for p in printed[-2:])
            else:
                why = last_line("\n".join(printed))
            yield name, status, why


def meson(suite, path):
    for line in pathlib.Path(path).read_text(errors="replace").splitlines():
        if not line.strip():
            continue
        test = json.loads(line)
        name = test["name"].split(" / ")[-1]
        result = test["result"]
        out = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
        cases = []
        if re.search(r"^\[\s*RUN\s*\]", out, re.M):
            cases = [(c, {"OK": "ok", "SKIPPED": "skip"}.get(s, "fail"), why) for c, s, why in cmocka_cases(out)]
        elif re.search(r"^1\.\.\d+", out, re.M):
            for m in (TAP.match(t) for t in out.splitlines()):
                if m:
                    kind = (m.group(3) or "").upper()
                    status = "skip" if kind == "SKIP" else "ok" if m.group(1).lower() == "ok" or kind == "TODO" else "fail"
                    cases.append((m.group(2), status, m.group(4) or ""))
        good = result in ("OK", "EXPECTEDFAIL")
        if result == "SKIP" and not cases:
            suite.skipped.append((name, last_line(out)))
            continue
        bad = 0
        for case, status, why in cases:
            if status == "ok":
                suite.passed += 1
            elif status == "skip":
                suite.skipped.append((f"{name}: {case}", why))
            else:
                bad += 1
                suite.failed.append((f"{name}: {case}", why))
        if good and not cases:
            suite.passed += 1
        elif not good and result != "SKIP" and not bad:
            # It crashed, timed out, or failed outside of any case.
            report = SANITIZER.search(out)
            why = report.group(0).strip() if report else last_line(out)
            suite.failed.append((name, f"{result.lower()}, exit {test.get('returncode')}: {why}"))


def junit(suite, path):
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '').split('.')[-1]}::{case.get('name')}"
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        skipped = case.find("skipped")
        if failure is not None:
            suite.failed.append((name, (failure.get("message") or "").splitlines()[0] if failure.get("message") else ""))
        elif skipped is not None:
            suite.skipped.append((name, skipped.get("message") or ""))
        else:
            suite.passed += 1


def fuzz(suite, path):
    for rc in sorted(pathlib.Path(path).glob("*.rc")):
        if rc.read_text().strip() == "0":
            suite.passed += 1
        else:
            log = rc.with_suffix(".log").read_text(errors="replace")
            found = re.search(r"^.*(?:ERROR: |runtime error: ).*$", log, re.M)
            suite.failed.append((rc.stem, found.group(0) if found else f"exit {rc.read_text().strip()}"))


def lint(suite, path):
    for line in pathlib.Path(path).read_text(errors="replace").splitlines():
        if line.startswith("ok "):
            suite.passed += 1
        elif line.startswith("FAIL "):
            suite.failed.append((line[5:].strip(), ""))
        elif line.startswith("skip "):
            name, _, why = line[5:].strip().partition(": ")
            suite.skipped.append((name, why))


def main():
    suites = {}
    for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
        name, kind, path, rc = line.split("\t")
        suite = suites.setdefault(name, Suite(name))
        if kind == "end":
            if rc == "0" and name != "build" and not (suite.passed or suite.failed or suite.skipped):
                suite.failed.append((f"stage {name}", "it found nothing to run"))
            if rc != "0" and not suite.failed:
                suite.failed.append((f"stage {name}", f"exit {rc}; see what it printed above"))
            continue
        try:
            {"meson": meson, "junit": junit, "fuzz": fuzz, "lint": lint}[kind](suite, path)
        except (OSError, ValueError, KeyError, ET.ParseError) as e:
            suite.failed.append((f"stage {name}", f"its result cannot be read: {e}"))

    for suite in suites.values():  # a skip without a reason is a failure
        suite.failed += [(test, "skipped without a reason") for test, why in suite.skipped if not short(why)]
        suite.skipped = [(test, why) for test, why in suite.skipped if short(why)]
    print(f"{'suite':<12}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for suite in suites.values():
        if suite.passed or suite.failed or suite.skipped:
            print(f"{suite.name:<12}{suite.passed:>8}{len(suite.failed):>8}{len(suite.skipped):>8}")
    passed = sum(s.passed for s in suites.values())
    failed = [(s.name, t, why) for s in suites.values() for t, why in s.failed]
    skipped = [(s.name, t, why) for s in suites.values() for t, why in s.skipped]
    if skipped:
        print("\nskipped")
        for suite, test, why in skipped:
            print(f"  {suite}: {short(test)}: {short(why)}")
    if failed:
        print("\nfailed")
        for suite, test, why in failed:
            print(f"  {suite}: {short(test)}{': ' + short(why) if why else ''}")
    if passed + len(failed) == 0:
        print("\nno test ran")
    print(f"\n{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
