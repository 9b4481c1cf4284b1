# SPDX-License-Identifier: Apache-2.0
"""The rdma transport between two devices of a real kernel: the conformance suite that shm, tcp and mem pass."""
import guest


def test_conformance(vm):
    program = guest.BUILD / "tests" / "transport" / "transport_rdma"
    r = vm.run([str(program)], timeout=300)
    assert r.rc == 0, r
    assert f"device rxe1 address {guest.ADDRESSES[1]} of 2".encode() in r.out  # over the cable, not within one device
