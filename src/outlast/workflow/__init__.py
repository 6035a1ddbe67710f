"""What every verb, every study and `outlast.fit` do: create runs, train, evaluate and load them."""
