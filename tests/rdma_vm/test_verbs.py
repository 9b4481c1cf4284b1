# SPDX-License-Identifier: Apache-2.0
"""What the guest's kernel does in the verbs calls that RDMA needs of it (verbs_test.c, README.md)."""
import guest
import inside


@inside.long
def test_verbs(rough_vm):
    """Links and devices are taken away."""
    r = rough_vm.run([guest.BUILD / "tests" / "rdma_vm" / "rdma_verbs_test"], timeout=300)
    print(r.text, r.err)
    assert r.rc == 0, r
