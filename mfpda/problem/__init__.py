"""The problem: a model, its examples, and what follows from them (outputs, Gibbs potentials)."""
