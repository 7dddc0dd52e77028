"""Figures: of a trace, of a record, of the machine. Each call shows one and says a sentence.

style     colours, markers, and the one way in which a figure reaches the page
"""
