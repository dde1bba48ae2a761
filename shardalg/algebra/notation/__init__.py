"""Shardings as text: HLO's three versions, Shardy's, PartitionSpecs and our own."""
