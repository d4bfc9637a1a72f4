"""Real attempts of small programs, as the supervisor's tests have them."""

from tests.workers.host.supervisor import conftest as supervisors

attempt = supervisors.attempt
make_attempt = supervisors.make_attempt
rendezvous_port = supervisors.rendezvous_port
