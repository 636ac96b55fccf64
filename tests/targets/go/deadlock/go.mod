module strata.test/deadlock

go 1.21
