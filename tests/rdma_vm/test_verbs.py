# SPDX-License-Identifier: Apache-2.0
"""What the guest's kernel does in the verbs calls that RDMA needs of it (verbs_test.c, README.md)."""
import guest


def test_verbs(own_vm):
    """One guest of its own: links and devices are taken away in it."""
    r = own_vm.run([guest.BUILD / "tests" / "rdma_vm" / "rdma_verbs_test"], timeout=300)
    print(r.text, r.err)
    assert r.rc == 0, r
