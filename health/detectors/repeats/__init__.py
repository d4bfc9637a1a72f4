"""Repetitions: rules over evidence that is there, as rows of one table (``rules``).

They are called whenever evidence is new or stated again.

Source: NVSentinel's analyzer for windows and counts; NVIDIA's catalogue for the action after a repetition. Evidence
that persons dismissed, or that is suspended or set aside, does not count, except for evidence that the driver's milder
decision overruled; a repair does not restart the count. An XID that a program causes at will (13 and 31) is stated for
a diagnosis and weighs nothing: otherwise one tenant's job that is placed on the same GPU again would take it out.
"""
