"""Documents of a job: plan, request, chunks, feedback, result, receipt."""
