"""What each head does: detectors with controls, intervals and verdicts corrected for the number of tests."""
