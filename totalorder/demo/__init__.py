"""`totalorder demo`: a day's work of New York's airports, ordered, and compared with plain Kafka consumers.

flights    the real events: departures and arrivals of 2013
world      who publishes what, and who subscribes to what
compare    pure: agreement of two delivery orders, completeness
journal    what a process published or delivered, in a file
processes  starts, watches and ends the processes
link       a process's end of the line to the demo
worker     what those processes do
supervisor clears up when the demo's own process is gone
audit      reads the stamps log as a third party
run        the run from begin to end
screen     what a person sees
"""
