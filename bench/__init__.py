"""How fast the products are, beside what else there is: `python -m bench.run --device cpu`.

problems    the shapes, and the models they come from
rivals/     one file per implementation
verify      no figure without a correct result in the same run
timing      how a time is taken
contest     one shape: prepare, verify, time
conversions quantising and dequantising, beside the definition
run         the command
machine     where and with what it ran
results     the record of a run, as JSON in results/
show        the record in a terminal
tables      the record in the documentation
"""
