"""The compiler's texts: compiled HLO read to objects, and source locations taken out of StableHLO and put back."""
