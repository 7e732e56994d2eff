"""Whether every signature that inputs bring was warmed, found out without running a program."""
