"""How transformers loads models whose weights are packed: its hooks, filled by this library.

    config      what a user asks for, and what config.json says
    quantizer   the hooks of transformers that are used
    stored      weights that are quantised in the checkpoint; stored_parts: what a rank reads
    on_load     weights that are quantised while they are loaded
    placements  how ranks share the layers of a model that transformers distributes
    parallel    how packed layers act in such a model
    load        a folder in, a model out, without a trace in transformers

`blockscale.integrations.transformers` registers the quantiser for every `from_pretrained` of a
process; `blockscale.models.load_model` uses it for one model. Nothing here is imported before
transformers is wanted.
"""
