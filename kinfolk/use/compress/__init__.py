"""Make a trained model smaller: cut what is not missed, exchange maps, teach students, and measure what each costs."""
