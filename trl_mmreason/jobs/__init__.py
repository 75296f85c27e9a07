"""Many conversations asked, stored, resumed and graded."""
