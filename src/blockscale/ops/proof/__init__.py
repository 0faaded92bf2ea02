"""Proofs: a kernel that no test has shown to work on a kind of GPU shows it on the user's.

Before its first use it computes small problems whose answers are known: lossless operands, whose
result must be right to the last bit, one-hot rows, which give back the weights, and random ones,
with a tolerance that is computed. That takes seconds, once for each GPU, driver and state of the
sources. A kernel that fails is passed over, with the reason.

    record     what the tests of this library have shown, on which GPU; shipped with it
    subject    which problems a proof holds for, and the small ones that it is made with
    operands   known operands, made on the CPU by the definition alone
    products, conversions   the cases of each verb, and their answers
    check      a kernel on these cases, on a device
    server     the same in a process of its own, since a wrong kernel may hang or take the GPU down
    apart      the other end: starts that process and waits, but not forever
    everything all kernels of a GPU, for `blockscale prove`
    standing   what is known of a kernel; `choose` asks it
"""
