module strata.test/onoff

go 1.21
