"""The same once more: rules over evidence that is there, a file each, asked whenever evidence is new or stated again.

Source: NVSentinel's analyzer for windows and counts; NVIDIA's catalogue for what a repetition asks for. What persons
dismissed, what is suspended and what was set aside does not count, but what the driver's milder word overruled does; a
repair does not begin the count anew. What a program brings about at will (XID 13 and 31) is told for a diagnosis and
weighs nothing: one tenant's job that is placed on the same GPU again would take it out.
"""
