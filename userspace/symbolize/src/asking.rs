//! Who asks the file service, and what else is done while it has not answered.

use strata_sandbox::{FileError, FileService, Reply, Request};

/// Asks the file service and waits.
pub trait Ask {
    /// Answers in the order of the requests.
    fn ask_all(&mut self, requests: Vec<Request>) -> Vec<Result<Reply, FileError>>;

    fn ask(&mut self, request: Request) -> Result<Reply, FileError> {
        let answer = self.ask_all(vec![request]).pop();
        answer.unwrap_or(Err(FileError::InvalidRequest("no answer")))
    }
}

impl Ask for FileService {
    fn ask_all(&mut self, requests: Vec<Request>) -> Vec<Result<Reply, FileError>> {
        self.call_all(requests)
    }
}
