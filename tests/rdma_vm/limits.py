#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast the guest's devices are without us, by perftest: what our transport is compared with, in the same guest. Run
by itself it prints the table. Everything is emulated: ratios mean something, the rates alone nothing."""
import guest

MIB = 1 << 20


def serve(vm, argv, port=18515):
    """Starts a server in the guest and waits until it listens."""
    job = vm.start(argv)
    vm.run(["sh", "-c", f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.1; done"], timeout=60)
    return job


def perftest(vm, program, size, depth, count):
    """MiB a second of `ib_read_bw` or `ib_write_bw` from rxe0 to rxe1."""
    # GID 1 is the IPv4 address; -F: no complaint about the frequency of a processor that has none.
    options = ["-x", "1", "-F", "-s", str(size), "-t", str(depth), "-n", str(count)]
    server = serve(vm, [program, "-d", "rxe1", *options])
    r = vm.run([program, "-d", "rxe0", *options, guest.ADDRESSES[1]], timeout=300)
    if r.rc != 0 or server.wait(60).rc != 0:
        raise guest.GuestError(f"{program} failed: {r}")
    line = next(words for words in map(str.split, r.text.splitlines()) if words[:1] == [str(size)])
    return float(line[3])


def main():
    with guest.Guest() as vm:
        print(f"kernel {vm.ready['ready']}, up after {vm.boot_s:.1f} s")
        for program, size, depth, count in (("ib_read_bw", MIB, 16, 200), ("ib_write_bw", MIB, 16, 200),
                                            ("ib_read_bw", 4096, 64, 5000)):
            rate = perftest(vm, program, size, depth, count)
            print(f"{program:<12} {size:>8} bytes, depth {depth:>3}: {rate:8.1f} MiB/s")


if __name__ == "__main__":
    main()
