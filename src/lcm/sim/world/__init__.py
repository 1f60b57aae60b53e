"""Everything we run, in a simulated world: the same control plane and controllers, in virtual time, from one seed.

`scenario` says what there is and what happens, `stage` is what outlives processes, `process` is one of ours, `people`
book and operate, `mishaps` go wrong, `witness` sees every commit and runs `checks`. `playing` plays a scenario,
`script`
one that is written down, `campaign` many seeds. Used by `make sim`, by tests, and by the planner.
"""
