"""Several devices and several processes: where arrays live, how processes stop together, signals."""
