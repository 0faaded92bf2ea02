"""How fast the products are, beside what else there is: `python -m bench.run --device cpu`.

problems        the shapes, and the models they come from
rivals/         one file per implementation
random_weights  quantised weights that nobody had to quantise
decoded         what their bytes stand for
verify          no figure without a correct result in the same run
timing          how a time is taken; cuda_timing: on a GPU; clocks: both
compile         kernels that are compiled at run time, before anything is timed
contest         one shape: prepare, verify, time
conversions     quantising and dequantising, beside the definition
run             the command
machine         where and with what it ran
results         the record of a run, as JSON in results/
show            the record in a terminal
tables          the record in the documentation; cuda_tables: of GPUs
picture         the speed of products on a GPU, beside bfloat16 and a plain read

Whole models, `python -m bench.decode`: decode, and decode_tables in the documentation.

Other work on a GPU, `python -m bench.verbs`:

experts         layers of experts
batched_gemv    one row in each batch, both operands quantised
gpu_quantize    quantising, beside a copy
host_cost       what a call costs the host
duel            some ways to do the same work, checked and timed in turns
measurements    the record, as JSON in results/verbs/; verbs_tables: in the documentation
"""
