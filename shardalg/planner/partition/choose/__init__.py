"""The choice at each node: a pure function of its row of RULES and its operands' available copies.

Choice: a node is computed in the way that takes the least time: the time in which a device sends,
computes and writes, at the rates of `Options.hardware` (`key.py`, `CostWeights`). An operator
without arithmetic takes the fewest bytes. Work is therefore repeated if that is cheaper than
sending, and divided otherwise. A contraction uses at least the devices on which its shardings match
(`matches.py`), so that fewer bytes never mean more arithmetic than in XLA's partitioner. Candidates
are the digits that completion assigned to its operands and results. The choice is a pure function
of (row, available copies, completed results, rates), made once per distinct key. If all tensors
have the shardings of one assignment already, no other candidate is built
(`Component.local_assignment`). The instructions of a node are a `Recipe`
(`planner/partition/emit/node.py`), derived once per operator class (`node_classes.py`) and
available copies, then found by integers. `make xla-bytes` compares the result with XLA on random
programs. A copy that one operator needed is available to the next choice of its phase
(`PartitionContext.enter`): only the first operator pays for a gather that several ones need.
Completion may give the gradient of an activation another sharding than the forward values have that
it is read with. Products are then compared with both shardings, readers included
(`co_operands.py`). Partial sums stay pending while their only reader can pass them on: `x + y` of
two pending sums is one pending sum. Gradients of q, k and v are therefore reduced once.

Nesting: the paper partitions nested patterns by groups of devices (section 4.4): a context per
group, whose collectives and partition ids are rewritten to the devices of all groups. Here digits
replace groups. Each loop of a row has its own digits, so patterns on different loops never
interfere. A partition id is read from the loop's digits, and the groups of a collective are the
devices that differ in its digits alone. No rule names a combination of patterns: batch,
non-contracting and contracting loops, or batch, space and features of a convolution, are each one
entry of an assignment. The paper's figure 6, `einsum("ab,bc->ac")` with a on X, b and c on Y,
prints as below. The gather along Y has the groups {{0,1},{2,3}} (`tests/paper/test_figure_6.py`).

    SpmdProgram on Mesh(X=2, Y=2), every device runs:
      %0 = f32[2@X,4@Y] argument
      %1 = f32[8,3@Y] argument
      %2 = f32[2@X,8] all_gather dim=1 axes=Y %0  # dot_general needs: [X, Y] to [X, None]
      %3 = f32[2@X,3@Y] dot_general [m@X, n@Y] %2 %1
      return %3
"""
