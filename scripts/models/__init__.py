"""The models of the zoo: which there are, running one, and the page of all."""
