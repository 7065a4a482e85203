"""Where people train: adapters that need more than torch. Import the module you use; the core never imports these."""
