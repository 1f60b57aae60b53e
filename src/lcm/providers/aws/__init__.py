"""EC2, CloudWatch, S3 and Secrets Manager behind the protocols."""
