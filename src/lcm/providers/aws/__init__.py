"""AWS behind the protocols: EC2, CloudWatch, S3, Secrets Manager."""
