"""The translated call in progress: the dispatch of functions to rules, and the state of the call."""
