"""The command line: thin. Each verb is one module, imported only when it is called."""
