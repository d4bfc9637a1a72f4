"""NVLink, NVSwitch fabric and PCIe."""
