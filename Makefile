.PHONY: test
test:
	@echo to be filled
