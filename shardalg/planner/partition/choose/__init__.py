"""What a node does where: pure functions of its row and the layouts at hand.

Choice: A node is computed where it takes the least time: what a device sends, computes and writes,
at the rates of `Options.hardware` (`planner/partition/choose/key.py: Weight`; an operator without
arithmetic: fewest bytes), so that work is repeated where that is cheaper than sending, and split
where it is not. A contraction is computed on no fewer devices than its layouts match on
(`planner/partition/choose/matches.py`), so that fewer bytes never mean more arithmetic than where
XLA
groups devices. Candidates are the digits that completion put on its operands and results. The
choice is a pure function of (row, layouts at hand, completed results, rates), decided once per
distinct key; where everything lies as one assignment computes it, no other is looked at
(`Component.fitted`). What a node emits is a `Recipe` (`planner/partition/emit/node.py`): worked
out once
per kind of node (`node_classes.py`, found once per function) and layouts at hand, then looked up by
integers. `make xla-bytes` holds it against XLA on programs that a seed draws. What was brought for
one operator is at hand where the next one of its phase is chosen (`PartitionContext.enter`): a
gather that serves several costs the first one alone. Partial sums stay pending while their only
user lets every sum wait (`x + y` of two pending sums is one pending sum), so q, k and v gradients
are reduced once.

Nesting: The paper partitions nested patterns by groups of devices (section 4.4): a context per
group, whose collectives and partition ids are rewritten to the devices of all groups. Here digits
stand for that. Each loop of a row has its own digits, so patterns on different loops never meet; a
partition id is read off the loop's digits, and the groups of a collective are the devices that
differ in its digits alone. No rule knows a combination: batch, non-contracting and contracting
loops, or batch, space and features of a convolution, are each one entry of an assignment. The
paper's figure 6, `einsum("ab,bc->ac")` with a on X, b and c on Y, prints as below; the gather
along Y has the groups {{0,1},{2,3}} (`tests/paper/test_figure_6.py`).

    SpmdProgram on Mesh(X=2, Y=2), every device runs:
      %0 = f32[2@X,4@Y] argument
      %1 = f32[8,3@Y] argument
      %2 = f32[2@X,8] all_gather dim=1 axes=Y %0  # dot_general needs: [X, Y] to [X, None]
      %3 = f32[2@X,3@Y] dot_general [m@X, n@Y] %2 %1
      return %3
"""
