module strata.test/cgo

go 1.21
